;;; no-backups.el --- No backup files  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq make-backup-files nil)

;;; no-backups.el ends here
