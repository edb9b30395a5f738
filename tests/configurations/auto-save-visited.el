;;; auto-save-visited.el --- Visited files saved by themselves  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq auto-save-visited-interval 1)
(auto-save-visited-mode 1)

;;; auto-save-visited.el ends here
