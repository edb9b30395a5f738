;;; aggressive-indent.el --- aggressive-indent everywhere  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: aggressive-indent

(require 'aggressive-indent)
(global-aggressive-indent-mode 1)

;;; aggressive-indent.el ends here
