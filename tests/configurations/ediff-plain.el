;;; ediff-plain.el --- Ediff in one frame, sides above each other  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq ediff-window-setup-function #'ediff-setup-windows-plain
      ediff-split-window-function #'split-window-vertically)

;;; ediff-plain.el ends here
