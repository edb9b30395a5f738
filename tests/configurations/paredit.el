;;; paredit.el --- Paredit in all programs  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: paredit

(require 'paredit)
(add-hook 'prog-mode-hook #'paredit-mode)
(add-hook 'text-mode-hook #'paredit-mode)

;;; paredit.el ends here
