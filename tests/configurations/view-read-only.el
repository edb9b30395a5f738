;;; view-read-only.el --- Read-only files in View mode  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq view-read-only t)
(add-hook 'find-file-hook #'read-only-mode)

;;; view-read-only.el ends here
