;;; smart-mode-line.el --- smart-mode-line  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: smart-mode-line

(require 'smart-mode-line)
(setq sml/no-confirm-load-theme t)
(sml/setup)

;;; smart-mode-line.el ends here
