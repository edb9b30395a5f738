;;; semantic.el --- Semantic, with C-c , as its prefix  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(semantic-mode 1)

;;; semantic.el ends here
