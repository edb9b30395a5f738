;;; company.el --- Company everywhere  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: company

(require 'company)
(setq company-idle-delay 0.1)
(global-company-mode 1)

;;; company.el ends here
