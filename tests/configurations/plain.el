;;; plain.el --- Emacs as it comes  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

;; Nothing: what the others are compared with.

;;; plain.el ends here
