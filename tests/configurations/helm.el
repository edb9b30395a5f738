;;; helm.el --- Helm  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: helm

(require 'helm)
(require 'helm-command)
(require 'helm-mode)
(helm-mode 1)
(global-set-key (kbd "M-x") #'helm-M-x)

;;; helm.el ends here
