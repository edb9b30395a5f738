;;; own-keys.el --- Keys of the user's own, with C-h for DEL  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(define-key key-translation-map (kbd "C-h") (kbd "DEL"))
(global-set-key (kbd "C-c C-c") #'comment-region)
(global-set-key (kbd "C-c C-k") #'kill-whole-line)
(global-set-key (kbd "TAB") #'tab-to-tab-stop)

;;; own-keys.el ends here
