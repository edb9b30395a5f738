;;; debug-on-error.el --- Errors open the debugger  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq debug-on-error t)

;;; debug-on-error.el ends here
