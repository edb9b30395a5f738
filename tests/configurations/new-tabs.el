;;; new-tabs.el --- Buffers in tabs of their own  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq display-buffer-base-action '(display-buffer-in-tab))
(tab-bar-mode 1)

;;; new-tabs.el ends here
