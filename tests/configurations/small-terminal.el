;;; small-terminal.el --- A terminal of 40 columns and 10 lines, a buffer in all of it  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Terminal: 40x10

;; In half of it there is no room for the CLI.
(setq display-buffer-alist '(("." (display-buffer-same-window))))

;;; small-terminal.el ends here
