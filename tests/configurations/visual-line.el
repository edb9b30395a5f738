;;; visual-line.el --- Long lines wrapped at words  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(global-visual-line-mode 1)
(add-hook 'text-mode-hook #'turn-on-auto-fill)

;;; visual-line.el ends here
