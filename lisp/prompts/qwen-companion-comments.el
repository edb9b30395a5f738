;;; qwen-companion-comments.el --- Comments for a CLI on lines of a review  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The display of comments on the changes of a CLI, and the prompt that sends
;; them.
;;
;; In a review, comments can be noted on lines.  They go to the CLI as one
;; prompt when the user accepts or rejects the proposal, or with the answer to
;; a plan; the next plan shows them once more.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-completion)
(require 'qwen-companion-drafts)
(require 'qwen-companion-hunks-view)
(require 'qwen-companion-messages)
(require 'qwen-companion-plan)
(require 'qwen-companion-prompts)
(require 'qwen-companion-places)
(require 'qwen-companion-proposal)
(require 'qwen-companion-review)
(require 'qwen-companion-review-unified)
(require 'qwen-companion-roots)
(require 'qwen-companion-untrusted)

(defface qwen-companion-comment
  '((t :inherit (font-lock-comment-face bold)))
  "Face of the user's comments on changes."
  :group 'qwen-companion)

(defun qwen-companion-comments-prompt (title comments)
  "Return COMMENTS as one prompt that begins with TITLE.
Each comment is (FILE LINE TEXT COMMENT): the name of a file, the number
of a line in it, its text, and the user's comment."
  (concat
   title "\n"
   (mapconcat
    (pcase-lambda (`(,file ,line ,text ,comment))
      (format "\n%s:%d\n> %s\n%s\n"
              (qwen-companion-untrusted-text file) line
              (qwen-companion-untrusted-text text t) comment))
    comments "")))

(defun qwen-companion-comments-show (comment property)
  "Show the text COMMENT below the line at point; return the overlay.
Set its PROPERTY to t."
  (let ((overlay (make-overlay (line-beginning-position)
                               (min (point-max) (1+ (line-end-position))))))
    (overlay-put overlay property t)
    (overlay-put overlay 'evaporate t)
    (overlay-put overlay 'after-string
                 (propertize (concat "    " comment "\n") 'face 'qwen-companion-comment))
    overlay))

;;; Of a review

(defvar qwen-companion-comments--noted (make-hash-table :test #'eq :weakness 'key)
  "The comments on each proposal, newest first: (LINE TEXT COMMENT KEY).
KEY is the value of `qwen-companion-comments--line-key'.")

(defun qwen-companion-comments--line ()
  "Return the number of the line at point in its text."
  (if (derived-mode-p 'qwen-companion-unified-mode)
      (cdr (or (and (qwen-companion-hunks-view-hunk-at (point))
                    (qwen-companion-hunks-view-lines-at))
               (user-error "Not on a line of a hunk")))
    (line-number-at-pos nil t)))

(defun qwen-companion-comments--line-key ()
  "Return a number that identifies the line at point among equal lines.
Unlike the line's number in the proposed text, it stays the same when
hunks are dropped and restored."
  (if (derived-mode-p 'qwen-companion-unified-mode)
      (pcase (qwen-companion-hunks-view-source-at (point))
        (`(,(or 'added 'dropped) ,_ . ,index)
         (+ (car (qwen-companion-hunks-view-lines-at)) index))
        (_ (car (qwen-companion-hunks-view-lines-at))))
    (line-number-at-pos nil t)))

(defun qwen-companion-comments--draw ()
  "Show the comments on the lines of a unified review that was just drawn."
  (when (derived-mode-p 'qwen-companion-unified-mode)
    (remove-overlays (point-min) (point-max) 'qwen-companion-review-comment t)
    (pcase-dolist (`(,_ ,text ,comment ,place)
                   (append (gethash qwen-companion-proposal-current
                                    qwen-companion-comments--noted)
                           ;; Its lines have moved.
                           (mapcar (lambda (noted) (seq-take noted 3))
                                   (gethash (qwen-companion-proposal-earlier
                                             qwen-companion-proposal-current)
                                            qwen-companion-comments--noted))))
      (let ((case-fold-search nil))
        (save-excursion
          (goto-char (point-min))
          (when (cl-loop with line = (concat "^[-+ ]?" (regexp-quote (string-remove-prefix "+" text)) "$")
                         while (re-search-forward line nil t)
                         thereis (and (qwen-companion-hunks-view-hunk-at (point))
                                      (or (null place)
                                          (= place (qwen-companion-comments--line-key)))))
            (qwen-companion-comments-show comment 'qwen-companion-review-comment)))))))

;;;###autoload
(defun qwen-companion-diff-comment ()
  "Note a comment on the line at point of a review; remove an empty one.
When you accept or reject the proposal, all its comments go to the CLI as
one prompt, once its turn is over."
  (interactive)
  (let* ((proposal (or qwen-companion-proposal-current
                       (user-error "Not in a buffer of a review")))
         (line (qwen-companion-comments--line))
         (place (qwen-companion-comments--line-key))
         (text (buffer-substring-no-properties (line-beginning-position)
                                               (line-end-position)))
         (noted (gethash proposal qwen-companion-comments--noted))
         (known (seq-find (lambda (comment)
                            (and (eql place (nth 3 comment)) (equal text (cadr comment))))
                          noted))
         (comment (string-trim
                   (qwen-companion-completion-read-words
                    (lambda () (read-string (format "Comment on line %d: " line) (nth 2 known)))
                    (lambda () (qwen-companion-proposal-open-p proposal)))))
         (left (append (and (not (string-empty-p comment))
                            (list (list line text comment place)))
                       (remq known noted))))
    (puthash proposal left qwen-companion-comments--noted)
    (qwen-companion-comments--auto-save proposal)
    (dolist (overlay (overlays-at (line-beginning-position)))
      (when (overlay-get overlay 'qwen-companion-review-comment)
        (delete-overlay overlay)))
    (unless (string-empty-p comment)
      (qwen-companion-comments-show comment 'qwen-companion-review-comment))
    (message "%s" (pcase (length left)
                    (0 "No comments are left")
                    (1 "1 comment goes to the CLI when you accept or reject")
                    (count (format "%d comments go to the CLI when you accept or reject"
                                   count))))))

(defun qwen-companion-comments--auto-save (proposal &optional sent)
  "Have Emacs auto-save the comments on PROPOSAL; with SENT, stop that."
  (qwen-companion-drafts-set
   (format " *qwen-companion comments: %s*" (qwen-companion-proposal-id proposal))
   (and (not sent) (qwen-companion-comments--of proposal nil))
   (qwen-companion-comments--root proposal)))

(defun qwen-companion-comments--root (proposal)
  "Return the directory of the project of PROPOSAL, without a final slash."
  (let ((session (qwen-companion-backend-session (qwen-companion-proposal-session proposal)))
        (directory (file-name-directory
                    (qwen-companion-places-name (qwen-companion-proposal-path proposal)))))
    (directory-file-name
     (or (and session (qwen-companion-session-directory session))
         (qwen-companion-proposal-directory proposal)
         (qwen-companion-roots-of directory)
         directory))))

(defun qwen-companion-comments--of (proposal outcome)
  "Return the comments on PROPOSAL as one prompt after OUTCOME; nil if none."
  (when-let* ((noted (gethash proposal qwen-companion-comments--noted)))
    (let* ((file-p (qwen-companion-proposal-file-p proposal))
           (what (if file-p
                     "change"
                   (symbol-name (qwen-companion-proposal-kind proposal)))))
      (qwen-companion-comments-prompt
       (format (pcase outcome
                 ('accepted "I have accepted your %s, with these comments:")
                 ('rejected "I have rejected your %s, for these reasons:")
                 (_ "Comments on your %s:"))
               what)
       (mapcar (pcase-lambda (`(,line ,text ,comment ,_))
                 (list (if file-p
                           (file-relative-name
                            (qwen-companion-places-name (qwen-companion-proposal-path proposal))
                            (qwen-companion-comments--root proposal))
                         what)
                       line text comment))
               (sort (copy-sequence noted) #'car-less-than-car))))))

(defun qwen-companion-comments--ended (proposal _before by-cli)
  "Send the comments on PROPOSAL, which has ended.
BY-CLI non-nil means that the CLI has ended it.  Comments on a plan were
sent with the answer.  Save the comments in the history of prompts too, in
case they get lost."
  (when-let* ((prompt (qwen-companion-comments--of
                       proposal (qwen-companion-proposal-state proposal))))
    (let ((session (qwen-companion-backend-session (qwen-companion-proposal-session proposal)))
          (root (qwen-companion-comments--root proposal)))
      (cond
       ((and (not by-cli) (qwen-companion-proposal-reason proposal))
        (qwen-companion-prompts-remember root prompt))
       ((or by-cli (not session))
        (qwen-companion-comments--copy prompt root))
       (t
        (condition-case nil
            (message "Comments: %s" (qwen-companion-prompts-send session root prompt t))
          (user-error (qwen-companion-comments--copy prompt root))))))
    (qwen-companion-comments--auto-save proposal t)))

(defun qwen-companion-comments-on-type-key (payload)
  "Handle the `type-key' call: answer a terminal by a key.
PAYLOAD names the plan that the terminal asks about.  Send its prompt once
the turn is over.  Return non-nil if the terminal is one of Emacs."
  (when-let* ((proposal (qwen-companion-proposal-decided
                         (qwen-companion-type-key-id payload)))
              (session (qwen-companion-backend-session (qwen-companion-proposal-session proposal)))
              (buffer (qwen-companion-terminal-session-buffer session))
              ((not (buffer-local-value 'qwen-companion-terminal-outside buffer)))
              (process (get-buffer-process buffer)))
    (process-send-string process (qwen-companion-type-key-key payload))
    (when-let* ((prompt (qwen-companion-type-key-prompt payload)))
      (qwen-companion-prompts-send session (qwen-companion-comments--root proposal) prompt t))
    t))

(defun qwen-companion-comments--copy (prompt root)
  "Copy PROMPT, about the project ROOT, for the user to paste."
  (qwen-companion-prompts-remember root prompt)
  (kill-new prompt)
  (message "qwen-companion: comments on the review not sent; they are in the kill ring and the history of M-x qwen-companion-ask"))

(define-key qwen-companion-review-buffer-mode-map (kbd "C-c C-r")
            #'qwen-companion-diff-comment)
(define-key qwen-companion-unified-mode-map (kbd "c") #'qwen-companion-diff-comment)
(define-key qwen-companion-unified-mode-map (kbd "C-c C-r") #'qwen-companion-diff-comment)

(push (cons '(qwen-companion-diff-comment "comment")
            (lambda () (qwen-companion-plan-kind-p 'plan)))
      (get 'qwen-companion-plan-mode 'qwen-companion-header-keys))

(setq qwen-companion-proposal-reason-function #'qwen-companion-comments--of)

(add-hook 'qwen-companion-hunks-view-drawn-hook #'qwen-companion-comments--draw)

;; After the reviews have closed, so that the message here is the last.
(add-hook 'qwen-companion-proposal-ended-functions
          #'qwen-companion-comments--ended 90)

(provide 'qwen-companion-comments)
;;; qwen-companion-comments.el ends here
