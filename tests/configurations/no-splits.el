;;; no-splits.el --- No window is split  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq split-width-threshold nil
      split-height-threshold nil
      window-min-height 10)

;;; no-splits.el ends here
