;;; read-only-files.el --- All files visited read-only  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(add-hook 'find-file-hook (lambda () (setq buffer-read-only t)))

;;; read-only-files.el ends here
