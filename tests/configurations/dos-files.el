;;; dos-files.el --- New files with line ends of DOS, Latin 1 preferred  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(prefer-coding-system 'latin-1)
(setq-default buffer-file-coding-system 'utf-8-dos)

;;; dos-files.el ends here
