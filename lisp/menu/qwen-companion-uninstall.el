;;; qwen-companion-uninstall.el --- Delete the companion's files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The Python environments and the records are deleted, after a question that
;; names them, and Qwen Code revokes the token by which Emacs prompts its CLIs.

;;; Code:

(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-environment)
(require 'qwen-companion-programs)
(require 'qwen-companion-terminal)

(defconst qwen-companion-uninstall--revoke-wait 30
  "Seconds that Qwen Code may take to revoke the token of Emacs.")

(defun qwen-companion-uninstall--controller ()
  "Return the id that Qwen Code gave Emacs as a controller, or nil."
  (let ((file (expand-file-name "controller.json" (qwen-companion-environment-records))))
    (when (file-readable-p file)
      (with-temp-buffer
        (insert-file-contents file nil 0 10000)
        (and (re-search-forward "\"id\": *\"\\([[:alnum:]_-]+\\)\"" nil t)
             (match-string 1))))))

(defun qwen-companion-uninstall--stop (process)
  "End PROCESS, which revokes a token, if it is still running."
  (delete-process process))

(defun qwen-companion-uninstall--revoke (id)
  "Have Qwen Code revoke the token of the controller ID; say if that fails."
  (let ((failed (lambda (reason)
                  (message "qwen-companion: the token of Emacs is not revoked (%s); run: qwen sessions controllers remove %s"
                           reason id))))
    (condition-case err
        (run-at-time
         qwen-companion-uninstall--revoke-wait nil #'qwen-companion-uninstall--stop
         (qwen-companion-programs-start
          :name "qwen-companion-revoke"
          :command (append qwen-companion-qwen-command
                           (list "sessions" "controllers" "remove" id))
          :noquery t
          :filter #'ignore
          :sentinel (lambda (process event)
                      (unless (or (process-live-p process)
                                  (eql 0 (process-exit-status process)))
                        (funcall failed (string-trim event))))))
      (file-error (funcall failed (error-message-string err))))))

;;;###autoload
(defun qwen-companion-uninstall ()
  "Delete the Python environment and the records, after a question.
The records are the journal, kept plans, texts saved while you wrote them,
and the token with which Emacs prompts other CLIs, which Qwen Code then
revokes.  Directories without the companion's mark stay.  While the mode
is off, only your options and the package itself are left on disk then."
  (interactive)
  (when (bound-and-true-p qwen-companion-mode)
    (user-error "The mode is on; turn `qwen-companion-mode' off first"))
  (let ((directories (qwen-companion-environment-directories))
        (controller (qwen-companion-uninstall--controller)))
    (unless directories
      (user-error "No files of the companion in %s or %s"
                  (abbreviate-file-name qwen-companion-backend-directory)
                  (abbreviate-file-name (qwen-companion-environment-records))))
    (when (yes-or-no-p
           (format "Delete %s%s%s? "
                   (mapconcat #'abbreviate-file-name directories ", ")
                   (if (member (qwen-companion-environment-records) directories)
                       " (journal, plans, drafts; this cannot be undone)"
                     "")
                   (if controller
                       " and revoke the token with which Emacs prompts other CLIs"
                     "")))
      (when controller
        (qwen-companion-uninstall--revoke controller))
      (dolist (directory directories)
        (delete-directory directory t))
      ;; Only when it is empty.
      (ignore-errors (delete-directory qwen-companion-backend-directory))
      (message "Deleted; your options stay, M-x package-delete removes the Lisp part"))))

(provide 'qwen-companion-uninstall)
;;; qwen-companion-uninstall.el ends here
