;;; flycheck.el --- Flycheck everywhere  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: flycheck

(require 'flycheck)
(global-flycheck-mode 1)

;;; flycheck.el ends here
