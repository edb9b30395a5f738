;;; header-line.el --- A header line in all buffers, with the function at point  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq-default header-line-format '("%b " which-func-format))
(which-function-mode 1)

;;; header-line.el ends here
