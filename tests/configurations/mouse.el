;;; mouse.el --- The mouse in the terminal  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(xterm-mouse-mode 1)
(mouse-avoidance-mode 'banish)
(global-tab-line-mode -1)
(context-menu-mode 1)

;;; mouse.el ends here
