;;; auto-revert.el --- All buffers reverted by themselves  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq global-auto-revert-non-file-buffers t
      auto-revert-interval 1)
(global-auto-revert-mode 1)

;;; auto-revert.el ends here
