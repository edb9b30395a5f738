;;; undo-tree.el --- undo-tree everywhere  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: undo-tree

(require 'undo-tree)
(global-undo-tree-mode 1)

;;; undo-tree.el ends here
