;;; whitespace-hooks.el --- Whitespace cleaned before each save  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq require-final-newline t
      mode-require-final-newline t)
(add-hook 'before-save-hook #'delete-trailing-whitespace)
(add-hook 'before-save-hook #'whitespace-cleanup)
(global-whitespace-mode 1)

;;; whitespace-hooks.el ends here
