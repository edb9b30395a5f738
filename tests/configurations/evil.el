;;; evil.el --- Evil  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: evil

(require 'evil)
(evil-mode 1)

;;; evil.el ends here
