;;; tab-bar.el --- Tabs for windows and buffers  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(tab-bar-mode 1)
(global-tab-line-mode 1)
(tab-bar-new-tab)
(tab-bar-select-tab 1)

;;; tab-bar.el ends here
