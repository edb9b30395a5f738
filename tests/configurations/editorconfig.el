;;; editorconfig.el --- EditorConfig  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: editorconfig

(require 'editorconfig)
(require 'editorconfig-core)
(setq editorconfig-get-properties-function #'editorconfig-core-get-properties-hash)
(editorconfig-mode 1)

;;; editorconfig.el ends here
