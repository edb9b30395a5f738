;;; yasnippet.el --- YASnippet everywhere  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: yasnippet

(require 'yasnippet)
(yas-global-mode 1)

;;; yasnippet.el ends here
