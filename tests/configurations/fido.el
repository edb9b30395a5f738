;;; fido.el --- Fido, vertically  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(fido-vertical-mode 1)

;;; fido.el ends here
