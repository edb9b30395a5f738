;;; qwen-companion-kept-plans-test.el --- Tests of approved plans  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)
(require 'qwen-companion-kept-plans)

(defun qwen-companion-kept-plans-test--answer (&rest files)
  "Answer the last request for plans with FILES, the newest first."
  (let ((request (car (last (qwen-companion-test-sent 'list-plans)))))
    ;; At once, not after this command.
    (cl-letf (((symbol-function 'run-at-time)
               (lambda (_time _repeat function &rest arguments) (apply function arguments))))
      (qwen-companion-backend-on-answer
       (list :id (plist-get request :id)
             :plans (cl-loop for file in files
                             for time downfrom 1795694071804
                             collect (list :path (expand-file-name file) :time time
                                           :conversation "s" :title file)))))))

(defmacro qwen-companion-kept-plans-test-with (&rest body)
  "Run BODY in a project with two plans, and a companion that is ready."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-files '(("new.md" "# New\n\nBake.\n") ("old.md" "# Old\n"))
     (qwen-companion-test-with-backend
       (qwen-companion-test-with-state 'ready
         (save-window-excursion ,@body)))))

(ert-deftest qwen-companion-kept-plans-test-shows-the-newest-or-a-chosen-one ()
  "The text is read-only; the only plan of a project is not asked for.
Without the companion the message names the way out."
  (qwen-companion-test-with-state 'off
    (qwen-companion-test-refused "M-x qwen-companion-mode starts it" (qwen-companion-plan)))
  (qwen-companion-kept-plans-test-with
    (qwen-companion-test-choosing ""
      (qwen-companion-plan)
      (qwen-companion-kept-plans-test--answer "new.md" "old.md"))
    (should (equal "# New\n\nBake.\n" (buffer-string)))
    (should buffer-read-only)
    (should (string-match-p "Approved 20" (qwen-companion-test-header)))
    (qwen-companion-test-choosing "2 old.md"
      (qwen-companion-plan-choose)
      (qwen-companion-kept-plans-test--answer "new.md" "old.md"))
    (should (equal "# Old\n" (buffer-string)))
    (qwen-companion-plan)
    (qwen-companion-kept-plans-test--answer "new.md")
    (should (equal "# New\n\nBake.\n" (buffer-string)))
    (qwen-companion-plan)
    (qwen-companion-test-said "No plan was approved in"
      (qwen-companion-kept-plans-test--answer))))

(ert-deftest qwen-companion-kept-plans-test-of-a-terminal ()
  "There it is the last plan of its CLI; C-u offers all of the project."
  (qwen-companion-kept-plans-test-with
    (let ((terminal (current-buffer)))
      (qwen-companion-test-set-sessions '((:id "mcp-1" :state (:conversation "s-1"))))
      (cl-letf (((symbol-function 'qwen-companion-terminal-session-buffer)
                 (lambda (_session) terminal)))
        (qwen-companion-plan)
        (qwen-companion-test-said "approved in this conversation; C-u M-x qwen-companion-plan"
          (qwen-companion-kept-plans-test--answer))
        (qwen-companion-plan)
        (should (equal "s-1" (plist-get (car (last (qwen-companion-test-sent 'list-plans)))
                                        :conversation)))
        ;; The newest of its own, without a question.
        (qwen-companion-kept-plans-test--answer "old.md" "new.md")
        (should (equal "# Old\n" (buffer-string)))
        (set-buffer terminal)
        (qwen-companion-plan t)
        (should-not (plist-get (car (last (qwen-companion-test-sent 'list-plans)))
                               :conversation))))))

(ert-deftest qwen-companion-kept-plans-test-saves-and-sends ()
  "As a file of the project, and as a prompt of another CLI."
  (qwen-companion-kept-plans-test-with
    (let ((file (expand-file-name "PLAN.md")))
      (qwen-companion-plan)
      (qwen-companion-kept-plans-test--answer "new.md")
      (let (sent)
        (cl-letf (((symbol-function 'qwen-companion-prompts-send)
                   (lambda (_session _root text &rest _) (setq sent text) "Sent")))
          (qwen-companion-plan-send nil))
        (should (equal "Follow this plan:\n\n# New\n\nBake.\n" sent)))
      (qwen-companion-plan-save file)
      (should (equal file buffer-file-name))
      (should (equal "# New\n\nBake.\n" (buffer-string))))))

(provide 'qwen-companion-kept-plans-test)
;;; qwen-companion-kept-plans-test.el ends here
