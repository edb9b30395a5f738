;;; magit.el --- Magit, and diff-hl in all files  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: magit diff-hl

(require 'magit)
(require 'diff-hl)
(require 'diff-hl-margin)
(require 'diff-hl-flydiff)
(global-diff-hl-mode 1)
(diff-hl-margin-mode 1)
(diff-hl-flydiff-mode 1)

;;; magit.el ends here
