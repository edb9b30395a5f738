;;; dark-theme.el --- A dark theme of others  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: zenburn-theme

(require 'zenburn-theme)
(load-theme 'zenburn t)

;;; dark-theme.el ends here
