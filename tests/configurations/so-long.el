;;; so-long.el --- so-long  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(global-so-long-mode 1)

;;; so-long.el ends here
