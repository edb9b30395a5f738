;;; no-mode-line.el --- No mode line and no menu bar  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq-default mode-line-format nil)
(menu-bar-mode -1)

;;; no-mode-line.el ends here
