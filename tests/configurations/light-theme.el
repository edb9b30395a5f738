;;; light-theme.el --- A light theme  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(load-theme 'modus-operandi t)

;;; light-theme.el ends here
