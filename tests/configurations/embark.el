;;; embark.el --- Embark  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: embark

(require 'embark)
(global-set-key (kbd "C-.") #'embark-act)
(setq prefix-help-command #'embark-prefix-help-command)

;;; embark.el ends here
