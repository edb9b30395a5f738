;;; golden-ratio.el --- Golden ratio  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: golden-ratio

(require 'golden-ratio)
(golden-ratio-mode 1)

;;; golden-ratio.el ends here
