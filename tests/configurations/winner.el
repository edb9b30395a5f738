;;; winner.el --- Winner and Windmove  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(winner-mode 1)
(windmove-default-keybindings)

;;; winner.el ends here
