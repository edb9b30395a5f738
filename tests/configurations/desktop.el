;;; desktop.el --- Desktop, recent files, places and histories kept  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq desktop-load-locked-desktop t
      desktop-auto-save-timeout 1)
(require 'desktop)
(desktop-save-mode 1)
(savehist-mode 1)
(save-place-mode 1)
(recentf-mode 1)

;;; desktop.el ends here
