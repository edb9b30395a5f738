;;; cua.el --- CUA keys  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(cua-mode 1)

;;; cua.el ends here
