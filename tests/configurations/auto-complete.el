;;; auto-complete.el --- Auto-Complete everywhere  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: auto-complete

(require 'auto-complete-config)
(ac-config-default)
(global-auto-complete-mode 1)

;;; auto-complete.el ends here
