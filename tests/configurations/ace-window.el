;;; ace-window.el --- ace-window  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: ace-window

(require 'ace-window)
(global-set-key (kbd "C-x o") #'ace-window)

;;; ace-window.el ends here
