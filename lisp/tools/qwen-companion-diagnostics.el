;;; qwen-companion-diagnostics.el --- Problems that checkers report  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later
;;; Commentary:

;; After an agent's edit of a visited file, the file is checked again, even if
;; no window shows it, and problems added by the edit are reported to the
;; model.  Problems are compared by their messages, not by their lines, as
;; lines move.
;;
;; With a prompt, the model is told of unsaved text and of errors in the file
;; in focus.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-context)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-privacy)
(require 'qwen-companion-problems)
(require 'qwen-companion-servers)
(require 'qwen-companion-timers)
(require 'qwen-companion-tools)

(declare-function flymake-diagnostics "flymake" (&optional beg end))
(declare-function flymake-start "flymake" (&optional deferred force))
(declare-function flycheck-buffer "ext:flycheck" ())

;;; The problems added by an edit

(defun qwen-companion-diagnostics-place (problem path &optional limit)
  "Return PROBLEM in the file PATH as an item of an answer.
Cut its message after LIMIT characters if that is non-nil."
  (qwen-companion-tools-place
   path
   (qwen-companion-problem-line problem)
   (qwen-companion-problem-column problem)
   (qwen-companion-problems-text problem limit)))

(defconst qwen-companion-diagnostics--wait 1.3
  "Seconds in which checkers may report after an edit.
The agent waits a little longer, see `tools/diagnostics.py'.")

(defconst qwen-companion-diagnostics--poll 0.03
  "Seconds between polls of the checkers.
Neither flymake nor flycheck announces a check without changes.")

(defconst qwen-companion-diagnostics--most 20
  "Most problems that are reported to a model unasked.")

(defconst qwen-companion-diagnostics--message-limit 300
  "Limit in characters of a checker's message to a model.")

(defvar-local qwen-companion-diagnostics--before nil
  "The problems known when an agent began to edit the file of this buffer.
The value is (TICK KNOWN WAIT . PROBLEMS).  KNOWN is nil if nothing had
been checked.  WAIT is a `qwen-companion-servers--wait' for the report of
a language server, or nil.")

(defun qwen-companion-diagnostics-on-edit-begins (payload)
  "Handle the `edit-begins' message PAYLOAD: note the current problems.
This cannot be delayed, as the file is about to change.  Return non-nil if
a buffer that is checked visits the file."
  (when-let* ((buffer (qwen-companion-diagnostics--buffer
                       (qwen-companion-edit-begins-path payload))))
    (with-current-buffer buffer
      (setq qwen-companion-diagnostics--before
            (cl-list* (buffer-chars-modified-tick)
                      (not (qwen-companion-problems-pending-p))
                      (qwen-companion-servers-wait)
                      (qwen-companion-problems))))
    t))

(defun qwen-companion-diagnostics--buffer (path)
  "Return the buffer that visits the file PATH if it is checked, or nil."
  (when-let* ((buffer (if (qwen-companion-places-remote-p path)
                          (qwen-companion-places-visiting path)
                        (qwen-companion-buffers-visiting path))))
    (and (with-current-buffer buffer (qwen-companion-problems-checked-p))
         (not (qwen-companion-privacy-secret-p buffer))
         buffer)))

(defun qwen-companion-diagnostics--check ()
  "Start the checkers of the current buffer.
Checkers based on reports of a language server use these at once."
  (when (bound-and-true-p flymake-mode)
    (flymake-start))
  (when (bound-and-true-p flycheck-mode)
    (flycheck-buffer)))

(defun qwen-companion-diagnostics--raw ()
  "Return the diagnostics of flymake in the current buffer."
  (and (bound-and-true-p flymake-mode)
       (save-restriction (widen) (flymake-diagnostics))))

(defun qwen-companion-diagnostics--after (buffer finish)
  "Call FINISH with the problems that an edit has added to BUFFER.
Do so once the text has changed and the checkers have reported on it, or
after `qwen-companion-diagnostics--wait' seconds."
  (pcase-let ((`(,tick ,_ ,wait . ,before)
               (buffer-local-value 'qwen-companion-diagnostics--before buffer))
              (end (+ (float-time) qwen-companion-diagnostics--wait))
              (started nil)
              (first nil))
    (cl-labels
        ((finish (problems)
           (when wait (qwen-companion-servers-end-wait wait))
           (funcall finish problems))
         (reported-p ()
           (or (not wait)
               (qwen-companion-servers-settled-p wait)
               ;; A server that answers requests for reports publishes none.
               ;; Otherwise a report on another file may repeat the old
               ;; problems.
               (and (not (qwen-companion-servers-publishes-p wait))
                    (not (equal first (qwen-companion-diagnostics--raw))))))
         (look ()
           (if (not (buffer-live-p buffer))
               (finish nil)
             (with-current-buffer buffer
               (unless (eql (buffer-chars-modified-tick) (or started tick))
                 (setq started (buffer-chars-modified-tick))
                 (when wait (qwen-companion-servers-text-changed wait))
                 (qwen-companion-servers-send-text)
                 (qwen-companion-diagnostics--check)
                 (setq first (qwen-companion-diagnostics--raw)))
               ;; If the clock was set back, the time left is longer than at
               ;; first.
               (if (not (or (not (< 0 (- end (float-time)) (1+ qwen-companion-diagnostics--wait)))
                            (and started
                                 (not (qwen-companion-problems-pending-p))
                                 (reported-p))))
                   (run-at-time qwen-companion-diagnostics--poll nil
                                #'qwen-companion-timers-call #'look)
                 ;; A checker may read the reports of a server only when it
                 ;; begins.
                 (when wait
                   (qwen-companion-diagnostics--check))
                 (finish (and started
                              (not (and wait
                                        (qwen-companion-servers-any-report-p wait)
                                        (not (qwen-companion-servers-reported-p wait))))
                              (qwen-companion-diagnostics--added
                               before (qwen-companion-problems)))))))))
      (look))))

(defun qwen-companion-diagnostics--key (problem)
  "Return the key of PROBLEM, equal for the same one before an edit."
  (list (qwen-companion-problem-severity problem)
        (qwen-companion-problem-source problem)
        (qwen-companion-problem-message problem)))

(defun qwen-companion-diagnostics--added (before after)
  "Return the problems AFTER that are not in BEFORE."
  (let ((keys (mapcar #'qwen-companion-diagnostics--key before)))
    (cl-remove-if (lambda (problem)
                    (let ((key (qwen-companion-diagnostics--key problem)))
                      (when (member key keys)
                        (setq keys (cl-remove key keys :test #'equal :count 1))
                        t)))
                  after)))

(defun qwen-companion-diagnostics--wanted (problems)
  "Return those of PROBLEMS that the user wants reported to models."
  (cl-remove-if-not
   (lambda (problem)
     (pcase qwen-companion-tell-problems
       ('all t)
       ('errors (eq 'error (qwen-companion-problem-severity problem)))))
   problems))

(defun qwen-companion-diagnostics--new-problems (arguments)
  "Return a function that answers with the problems of the edit in ARGUMENTS."
  (when-let* ((path (cadr (assoc "path" arguments)))
              (buffer (qwen-companion-diagnostics--buffer path)))
    (when (buffer-local-value 'qwen-companion-diagnostics--before buffer)
      (lambda (answer)
        (qwen-companion-diagnostics--after
         buffer
         (lambda (problems)
           (let ((known (and (buffer-live-p buffer)
                             (cadr (buffer-local-value
                                    'qwen-companion-diagnostics--before buffer))))
                 (problems (qwen-companion-diagnostics--wanted problems)))
             (funcall answer
                      (qwen-companion-diagnostics--listed
                       problems path
                       (unless known
                         "The file had not been checked before, so some of these may be old."))))))))))

(defun qwen-companion-diagnostics--listed (problems path &optional note)
  "Return PROBLEMS in the file PATH as an answer, with NOTE; nil if there are none."
  (when problems
    (let ((more (- (length problems) qwen-companion-diagnostics--most)))
      (append (mapcar (lambda (problem)
                        (qwen-companion-diagnostics-place
                         problem path qwen-companion-diagnostics--message-limit))
                      (seq-take problems qwen-companion-diagnostics--most))
              (and (> more 0) (list (format "(%d more.)" more)))
              (and note (list note))))))

(defun qwen-companion-diagnostics--prompt-facts (_arguments)
  "Return the note for a model's prompt: unsaved text, and errors."
  (let ((active (qwen-companion-context-active-file)))
    (append
     (cl-loop for buffer in (buffer-list)
              for file = (buffer-file-name buffer)
              when (and file (buffer-modified-p buffer)
                        (not (qwen-companion-privacy-secret-p buffer)))
              collect (qwen-companion-tools-place
                       file nil nil
                       "has unsaved changes in Emacs; the disk has the older text")
              into unsaved
              finally return (seq-take unsaved qwen-companion-diagnostics--most))
     (when (and active qwen-companion-tell-problems
                (not (qwen-companion-privacy-secret-p active)))
       (with-current-buffer active
         (when (qwen-companion-problems-checked-p)
           (qwen-companion-diagnostics--listed
            (cl-remove 'error (qwen-companion-diagnostics--wanted
                               (qwen-companion-problems))
                       :key #'qwen-companion-problem-severity
                       :test-not #'eq)
            buffer-file-name)))))))

(setf (alist-get "new-problems" qwen-companion-tools-reports nil nil #'equal)
      #'qwen-companion-diagnostics--new-problems
      (alist-get "prompt-facts" qwen-companion-tools-reports nil nil #'equal)
      #'qwen-companion-diagnostics--prompt-facts)

(defun qwen-companion-diagnostics-forget ()
  "Forget the problems known before edits, and stop recording reports."
  (qwen-companion-servers-forget)
  (dolist (buffer (buffer-list))
    (with-current-buffer buffer
      (kill-local-variable 'qwen-companion-diagnostics--before))))

(provide 'qwen-companion-diagnostics)
;;; qwen-companion-diagnostics.el ends here
