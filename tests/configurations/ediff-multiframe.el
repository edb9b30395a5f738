;;; ediff-multiframe.el --- Ediff in frames  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq ediff-window-setup-function #'ediff-setup-windows-multiframe
      ediff-split-window-function #'split-window-horizontally)

;;; ediff-multiframe.el ends here
