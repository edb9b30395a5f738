;;; qwen-companion-chat-review.el --- Reviews of the edits that a chat asks for  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; An edit that waits for permission in a chat can be reviewed like a proposal
;; of a CLI: dropped hunk by hunk, edited, accepted and rejected.
;;
;; The daemon accepts a yes or a no, but no text.  So an edit that the user has
;; changed is allowed as it is; once its tool has written the file, the user's
;; changes are merged into the buffer that visits it, as one undo step, and
;; saved.  Their base is the proposed text, so other changes made to the file
;; meanwhile stay.  The Python process tells the model about it.
;;
;; If the tool does not write the file, or it is unknown whether it did, the
;; user's text is kept in a buffer, see qwen-companion-rescue.el.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-chat-state)
(require 'qwen-companion-conflicts)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-disk)
(require 'qwen-companion-merge)
(require 'qwen-companion-proposal)
(require 'qwen-companion-review)
(require 'qwen-companion-review-unified)

(cl-defstruct (qwen-companion-chat-review--edit
               (:constructor qwen-companion-chat-review--make)
               (:copier nil))
  "An allowed edit that will be changed once its tool has written it.
It may be an edited plan, of which the model is told.  PROPOSAL is the
reviewed proposal, which has ended.  PROPOSED is its original text, WANTED
the user's version of it.  SESSION and TOOL are ids.  CHECKS is the number
of checks of the buffer left before it is reverted, see
`qwen-companion-chat-review--apply'."
  proposal proposed wanted session tool (checks 30))

(defvar qwen-companion-chat-review--edits nil
  "The edits whose tools have not ended, newest first.")

(defconst qwen-companion-chat-review--check-delay 0.1
  "Seconds between checks whether a buffer matches its file.")

;;; The review

(defun qwen-companion-chat-review-open (permission tool path text answer)
  "Review TEXT, the whole text that TOOL wants to write to PATH.
PERMISSION, TOOL and ANSWER are as in `qwen-companion-chat-review-begin'.
A review that was put aside is shown again."
  (let ((proposal (qwen-companion-proposal-by-id permission)))
    (unless proposal
      (setq proposal (qwen-companion-chat-review-begin permission tool path text answer))
      ;; It opens beside the chat; both sides of Ediff would hide that.
      (setf (qwen-companion-proposal-style proposal) 'unified))
    (qwen-companion-diff-open proposal)))

(defun qwen-companion-chat-review-begin (permission tool path text answer &optional plan)
  "Begin and return a proposal of TEXT, by TOOL, for PATH.
PERMISSION and TOOL are ids.  ANSWER is called in this chat with the
proposal, whether the user allows it, and the user's text, or nil if that
is the same; it may signal an error.  With PLAN non-nil, TEXT is a plan to
approve."
  (let ((chat (current-buffer)))
    (qwen-companion-proposal-begin
     :id permission :session qwen-companion-chat-session-id
     :client "qwen serve" :path path :text text
     :chat (and plan chat)
     :directory (and plan (directory-file-name (expand-file-name default-directory)))
     :answer (lambda (proposal outcome wanted)
               (with-current-buffer chat
                 (qwen-companion-chat-review--decide
                  proposal tool text (and (eq outcome 'accepted) wanted) answer))))))

(defun qwen-companion-chat-review--decide (proposal tool proposed wanted answer)
  "Call ANSWER with the user's decision about PROPOSAL, by TOOL.
WANTED is the accepted text, nil if it is rejected; PROPOSED is the
original."
  (let ((edit (and wanted
                   (qwen-companion-proposal-edited-p proposal)
                   (not (equal wanted proposed))
                   (qwen-companion-chat-review--make
                    :proposal proposal :proposed proposed :wanted wanted
                    :session qwen-companion-chat-session-id :tool tool))))
    ;; First, since the tool may end before this returns.
    (when edit
      (push edit qwen-companion-chat-review--edits))
    (condition-case err
        (funcall answer proposal (and wanted t) (and edit wanted))
      (error
       (setq qwen-companion-chat-review--edits (delq edit qwen-companion-chat-review--edits))
       (signal (car err) (cdr err))))))

(defun qwen-companion-chat-review-edited-p (permission)
  "Return non-nil when the user has edited the open review of PERMISSION."
  (when-let* ((proposal (qwen-companion-proposal-by-id permission)))
    (qwen-companion-proposal-edited-p proposal)))

(defun qwen-companion-chat-review-close (permission reason)
  "Close the review of PERMISSION, if it is open; keep its edits for REASON."
  (when-let* ((proposal (qwen-companion-proposal-by-id permission)))
    (qwen-companion-proposal-withdraw proposal reason)))

(defun qwen-companion-chat-review-void (permission reason)
  "Keep the text that was accepted for PERMISSION, if any, for REASON.
The answer of the user is void."
  (qwen-companion-chat-review--keep
   (lambda (edit)
     (equal permission (qwen-companion-proposal-id
                        (qwen-companion-chat-review--edit-proposal edit))))
   reason))

(defun qwen-companion-chat-review-end (reason)
  "Close all reviews of the session of this chat; keep all edits for REASON."
  (qwen-companion-chat-review--withdraw reason)
  (qwen-companion-chat-review--keep #'qwen-companion-chat-review--here-p reason))

(defun qwen-companion-chat-review--withdraw (reason)
  "Close all reviews of the session of this chat for REASON."
  (dolist (proposal (copy-sequence (qwen-companion-proposals)))
    (when (and (qwen-companion-proposal-answer proposal)
               (equal qwen-companion-chat-session-id
                      (qwen-companion-proposal-session proposal)))
      (qwen-companion-proposal-withdraw proposal reason))))

(defun qwen-companion-chat-review--here-p (edit)
  "Return non-nil when EDIT is of the session of this chat."
  (equal qwen-companion-chat-session-id (qwen-companion-chat-review--edit-session edit)))

(defun qwen-companion-chat-review--keep (predicate reason)
  "Keep the texts of the edits that satisfy PREDICATE, for REASON."
  (dolist (edit (cl-remove-if-not predicate qwen-companion-chat-review--edits))
    (qwen-companion-chat-review--give-up edit reason)))

(defun qwen-companion-chat-review--give-up (edit reason)
  "Keep the text of EDIT in a buffer, for REASON: its file does not have it."
  (setq qwen-companion-chat-review--edits (delq edit qwen-companion-chat-review--edits))
  (qwen-companion-proposal-rescue-accepted
   (qwen-companion-chat-review--edit-proposal edit)
   (qwen-companion-chat-review--edit-wanted edit)
   reason))

;;; After the write

(defun qwen-companion-chat-review-on-tool (tool)
  "Merge the user's edits of TOOL's change into the file once TOOL has ended."
  (dolist (edit qwen-companion-chat-review--edits)
    (when (and (qwen-companion-chat-review--here-p edit)
               (equal (qwen-companion-daemon-tool-id tool)
                      (qwen-companion-chat-review--edit-tool edit)))
      (pcase (qwen-companion-daemon-tool-status tool)
        ('done
         (setq qwen-companion-chat-review--edits (delq edit qwen-companion-chat-review--edits))
         (when (qwen-companion-proposal-file-p (qwen-companion-chat-review--edit-proposal edit))
           (run-at-time 0 nil #'qwen-companion-chat-review--apply edit)))
        ('failed
         (qwen-companion-chat-review--give-up
          edit (format (if (qwen-companion-proposal-file-p
                            (qwen-companion-chat-review--edit-proposal edit))
                           "the tool has failed, and has not written %s"
                         "the tool has failed, and goes on without %s")
                       (qwen-companion-chat-review--file edit))))))))

(defun qwen-companion-chat-review-on-idle ()
  "Keep the edits of this session whose tools will no longer write.
Close reviews whose end was missed."
  (qwen-companion-chat-review--withdraw "the turn has ended before it was answered")
  (qwen-companion-chat-review--keep
   #'qwen-companion-chat-review--here-p
   "the turn has ended, and it is unknown whether the file was written"))

(defun qwen-companion-chat-review--file (edit)
  "Return the file name of EDIT, safe to display."
  (qwen-companion-proposal-display-path (qwen-companion-chat-review--edit-proposal edit)))

(defun qwen-companion-chat-review--apply (edit)
  "Merge the user's text of EDIT into the buffer that visits its file.
If the buffer does not have the written text yet, try again in a moment."
  (condition-case err
      (with-current-buffer (qwen-companion-chat-review--visit edit)
        (cond
         ((qwen-companion-conflicts-p)
          (user-error "%s has conflicts that are not resolved" (buffer-name)))
         ((qwen-companion-chat-review--in-step-p)
          (qwen-companion-chat-review--merge edit))
         ((> (cl-decf (qwen-companion-chat-review--edit-checks edit)) 0)
          (run-at-time qwen-companion-chat-review--check-delay nil
                       #'qwen-companion-chat-review--apply edit))
         ((buffer-modified-p)
          (user-error "%s has unsaved text, and its file has changed too" (buffer-name)))
         (t
          ;; No buffer follows the file.
          (revert-buffer t t t)
          (qwen-companion-chat-review--merge edit))))
    (error
     (qwen-companion-chat-review--give-up
      edit (format "%s is written without your changes (%s)"
                   (qwen-companion-chat-review--file edit) (error-message-string err))))))

(defun qwen-companion-chat-review--visit (edit)
  "Return a buffer that visits the file of EDIT."
  (let* ((path (qwen-companion-proposal-path (qwen-companion-chat-review--edit-proposal edit)))
         (buffer (or (find-buffer-visiting path)
                     (let ((enable-local-variables :safe))
                       (find-file-noselect path t)))))
    (with-current-buffer (or (buffer-base-buffer buffer) buffer)
      (barf-if-buffer-read-only)
      (current-buffer))))

(defun qwen-companion-chat-review--in-step-p ()
  "Return non-nil if this buffer has the text on disk, or started from it."
  (if (buffer-modified-p)
      (run-hook-with-args-until-failure 'qwen-companion-disk-catch-up-functions
                                        buffer-file-name)
    (qwen-companion-disk-holds-p buffer-file-name
                                 (qwen-companion-disk-text (current-buffer) "\n"))))

(defun qwen-companion-chat-review--plain (edit text)
  "Return TEXT, of EDIT, as in a buffer."
  (let ((text (string-remove-prefix "\ufeff" text)))
    (if (qwen-companion-proposal-exact (qwen-companion-chat-review--edit-proposal edit))
        text
      (qwen-companion-disk-unix-text text))))

(defun qwen-companion-chat-review--merge (edit)
  "Request the merge of EDIT into the current buffer."
  (let ((base (qwen-companion-chat-review--plain
               edit (qwen-companion-chat-review--edit-proposed edit)))
        (theirs (qwen-companion-chat-review--plain
                 edit (qwen-companion-chat-review--edit-wanted edit)))
        (mine (qwen-companion-disk-text (current-buffer) "\n"))
        (buffer (current-buffer))
        (tick (buffer-chars-modified-tick)))
    (qwen-companion-merge-texts
     (unless (equal base mine) base) mine theirs qwen-companion-conflicts-review-labels
     (lambda (merged)
       (cond
        ((null merged)
         (qwen-companion-chat-review--give-up
          edit (format "%s is written, and your changes could not be merged into it"
                       (qwen-companion-chat-review--file edit))))
        ((and (buffer-live-p buffer)
              (= tick (buffer-chars-modified-tick buffer)))
         (with-current-buffer buffer
           (qwen-companion-chat-review--change edit merged theirs)))
        (t
         (qwen-companion-chat-review--apply edit)))))))

(defun qwen-companion-chat-review--change (edit merged theirs)
  "Change the current buffer by MERGED, from the text THEIRS of EDIT; save it."
  (let ((modified (buffer-modified-p))
        (conflicts (qwen-companion-merge-result-conflicts merged)))
    (qwen-companion-merge-apply merged theirs)
    (qwen-companion-chat-review--keep-line-ends edit)
    (cond
     ((> conflicts 0)
      (qwen-companion-conflicts-begin nil nil nil)
      (message "qwen-companion: %d conflict%s between your review of %s and what was written; resolve in %s"
               conflicts (if (= conflicts 1) "" "s")
               (qwen-companion-chat-review--file edit) (buffer-name)))
     (modified
      (message "qwen-companion: your changes are merged into %s, which is not saved"
               (buffer-name)))
     (t
      (condition-case err
          (progn
            (qwen-companion-chat-review--save)
            (message "qwen-companion: %s has your changes" (qwen-companion-chat-review--file edit)))
        (error
         (message "qwen-companion: your changes are in %s, which is not saved: %s"
                  (buffer-name) (error-message-string err))))))))

(defun qwen-companion-chat-review--keep-line-ends (edit)
  "Restore the line ends of the current buffer if the user wants that.
EDIT says so; see `qwen-companion-diff-toggle-line-ends'."
  (let ((proposal (qwen-companion-chat-review--edit-proposal edit)))
    (when (and (qwen-companion-proposal-as-on-disk proposal)
               (not (qwen-companion-proposal-exact proposal)))
      (set-buffer-file-coding-system
       (coding-system-change-eol-conversion
        (or buffer-file-coding-system 'utf-8)
        (if (equal "\r\n" (qwen-companion-proposal-line-end proposal)) 'dos 'unix))))))

(defun qwen-companion-chat-review--save ()
  "Save the current buffer without asking anything; signal an error instead."
  (save-restriction
    (widen)
    (cond
     ((not (verify-visited-file-modtime))
      (user-error "Its file has changed again"))
     ((unencodable-char-position (point-min) (point-max)
                                 (or buffer-file-coding-system 'utf-8))
      (user-error "Its encoding lacks a character of yours"))))
  (qwen-companion-disk-save))

(provide 'qwen-companion-chat-review)
;;; qwen-companion-chat-review.el ends here
