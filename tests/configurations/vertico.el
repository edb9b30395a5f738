;;; vertico.el --- Vertico with Orderless  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: vertico orderless

(require 'vertico)
(require 'orderless)
(setq completion-styles '(orderless basic))
(vertico-mode 1)

;;; vertico.el ends here
