;;; electric-pair.el --- Pairs, quotes and indentation by Emacs  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(electric-pair-mode 1)
(electric-quote-mode 1)
(electric-indent-mode 1)
(electric-layout-mode 1)

;;; electric-pair.el ends here
