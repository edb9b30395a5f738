;;; eyebrowse.el --- Eyebrowse  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: eyebrowse

(require 'eyebrowse)
(eyebrowse-mode 1)

;;; eyebrowse.el ends here
