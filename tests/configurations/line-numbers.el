;;; line-numbers.el --- Line numbers, the current line, the column ruler  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(global-display-line-numbers-mode 1)
(global-hl-line-mode 1)
(global-display-fill-column-indicator-mode 1)
(column-number-mode 1)
(size-indication-mode 1)

;;; line-numbers.el ends here
