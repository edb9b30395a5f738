;;; popups-below.el --- Special buffers in a side window below, as with popwin and shackle  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq display-buffer-alist
      '(("\\`\\*" (display-buffer-in-side-window)
         (side . bottom) (window-height . 15))))

;;; popups-below.el ends here
