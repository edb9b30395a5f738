;;; qwen-companion-plan.el --- Plans and questions of a CLI  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A plan, or a set of questions, is a proposal and has the same life cycle.
;; This file shows them.  A plan is shown in an editable buffer; after a
;; refusal, the next plan is shown hunk by hunk, compared with the refused
;; one.  Questions are answered in the minibuffer.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-completion)
(require 'qwen-companion-header)
(require 'qwen-companion-messages)
(require 'qwen-companion-proposal)
(require 'qwen-companion-review)
(require 'qwen-companion-review-unified)
(require 'qwen-companion-review-windows)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

;;; The mode

(defun qwen-companion-plan-kind-p (kind)
  "Return non-nil when the proposal of the current buffer is of KIND."
  (eq kind (qwen-companion-proposal-kind qwen-companion-proposal-current)))

(qwen-companion-header-define-keys qwen-companion-plan-mode nil
  ("C-c C-c" qwen-companion-diff-accept nil "approve"
   :keep t :if (qwen-companion-plan-kind-p 'plan))
  (nil qwen-companion-diff-accept nil "answer"
       :keep t :if (qwen-companion-plan-kind-p 'question))
  (nil qwen-companion-diff-reject nil "refuse"
       :keep t :if (qwen-companion-plan-kind-p 'plan))
  (nil qwen-companion-diff-reject nil "decline"
       :keep t :if (qwen-companion-plan-kind-p 'question))
  ("C-c C-t" qwen-companion-plan-in-terminal nil "answer in the terminal"
   :if (not (qwen-companion-proposal-chat qwen-companion-proposal-current)))
  (nil qwen-companion-plan-in-terminal nil "answer in the chat"
       :if (qwen-companion-proposal-chat qwen-companion-proposal-current))
  ("C-c C-d" qwen-companion-diff-switch nil)
  ("C-c C-q" qwen-companion-diff-bury nil "put aside")
  ("C-c ?" qwen-companion-header-help nil))

(defconst qwen-companion-plan--keywords
  '(("^#\\{1,6\\} .*" . 'outline-1)
    ("^[ \t]*\\(?:[-*+]\\|[0-9]+[.)]\\)[ \t]" . 'bold)
    ("^[ \t]*>.*" . 'italic)
    ("`[^`\n]+`" . 'font-lock-constant-face)
    ("\\*\\*[^* \n][^*\n]*\\*\\*" . 'bold))
  "Colours of Markdown where there is no `markdown-mode'.")

(define-minor-mode qwen-companion-plan-mode
  "Minor mode of a plan, or of questions, of a CLI.

\\{qwen-companion-plan-mode-map}"
  :interactive nil
  :lighter " Plan"
  (setq header-line-format
        (and qwen-companion-plan-mode '((:eval (qwen-companion-plan--header)))))
  (if qwen-companion-plan-mode
      (add-hook 'qwen-companion-review-accept-functions #'qwen-companion-plan--choose-mode nil t)
    (remove-hook 'qwen-companion-review-accept-functions #'qwen-companion-plan--choose-mode t))
  (setq-local word-wrap qwen-companion-plan-mode)
  (unless (derived-mode-p 'markdown-mode)
    (setq-local font-lock-defaults
                (and qwen-companion-plan-mode '(qwen-companion-plan--keywords t)))
    (font-lock-mode (if qwen-companion-plan-mode 1 -1))))

(defun qwen-companion-plan--header ()
  "Return the header line: the request, warnings, keys."
  (let ((proposal qwen-companion-proposal-current))
    (qwen-companion-header-line
     (qwen-companion-review-file proposal)
     `(,@(qwen-companion-review-origin-parts proposal)
       ,@(qwen-companion-review-warning-parts proposal)
       ,@(qwen-companion-review-mode-keys 'qwen-companion-plan-mode)))))

(defun qwen-companion-plan-process-gone ()
  "Note that CLIs ask in their terminals, because the Python process has ended."
  (dolist (proposal (qwen-companion-proposals))
    (when (and (qwen-companion-proposal-held proposal)
               (memq (qwen-companion-proposal-kind proposal) '(plan question)))
      (qwen-companion-backend-note-question
       (qwen-companion-proposal-session proposal)
       (if (eq 'plan (qwen-companion-proposal-kind proposal))
           "whether to carry out its plan"
         "its questions")))))

;;; Its front end

(cl-defmethod qwen-companion-review-style ((_kind (eql 'plan)) proposal)
  "Return the front end for PROPOSAL, a plan: hunks if it is not the first one."
  (if (qwen-companion-proposal-earlier proposal) 'unified 'plan))

(cl-defmethod qwen-companion-review-style ((_kind (eql 'question)) _proposal)
  "Return the front end for questions."
  'plan)

(cl-defmethod qwen-companion-review-fits-p ((_style (eql 'plan)) proposal select)
  "Return non-nil when there is room for PROPOSAL beside the selected window.
If SELECT is non-nil, no room is needed."
  (or select (qwen-companion-review-windows-beside-p proposal)))

(cl-defmethod qwen-companion-review-show ((_style (eql 'plan)) proposal select)
  "Show PROPOSAL, a plan or questions; SELECT non-nil means to select it."
  (let* ((frame (qwen-companion-review-windows-frame proposal select))
         (selected (selected-window))
         (shown (window-buffer selected))
         (view (qwen-companion-review-windows-new-view proposal frame select))
         (buffer (qwen-companion-proposal-buffer proposal)))
    (setf (qwen-companion-proposal-view proposal) view)
    (with-current-buffer buffer
      (unless qwen-companion-plan-mode
        (qwen-companion-plan--draw-questions proposal)
        (qwen-companion-plan-mode)))
    (qwen-companion-review-windows-show-in frame view buffer)
    (qwen-companion-review-windows-select proposal select selected shown buffer)))

(cl-defmethod qwen-companion-review-hide ((_style (eql 'plan)) proposal)
  "Remove PROPOSAL, a plan or questions, from the screen."
  (qwen-companion-review-windows-restore proposal)
  (qwen-companion-review-windows-forget-view proposal))

(cl-defmethod qwen-companion-review-refresh ((_style (eql 'plan)) _proposal)
  "Do nothing: the buffer shown is the text itself."
  nil)

(cl-defmethod qwen-companion-review-answer ((_kind (eql 'plan)) proposal)
  "Return the text of PROPOSAL, a plan to approve."
  (when (string-blank-p (qwen-companion-buffers-text (qwen-companion-proposal-buffer proposal)))
    (qwen-companion-header-error
     "The plan is empty; \\[undo] restores its text, \\[qwen-companion-diff-reject] refuses the plan"))
  (qwen-companion-review-check-text proposal)
  (qwen-companion-proposal-buffer-text proposal))

(defconst qwen-companion-plan--modes
  '(("as before") ("auto-edit" . auto-edit) ("default" . default))
  "Approval modes after a plan, by name.")

(defun qwen-companion-plan--choose-mode (proposal)
  "Ask for the approval mode after the plan PROPOSAL if there is a prefix argument.
By default the CLI continues in the mode it had before the plan."
  (when (eq 'plan (qwen-companion-proposal-kind proposal))
    (setf (qwen-companion-proposal-mode proposal)
          (and current-prefix-arg
               (qwen-companion-completion-read "Continue in mode: " qwen-companion-plan--modes
                                               'qwen-companion-approval-mode)))))

(defun qwen-companion-plan-in-terminal ()
  "Answer the plan or the questions of this buffer in the terminal instead.
A plan of a chat is answered there.  The buffer stays until they are
answered."
  (interactive nil qwen-companion-plan-mode)
  (let ((proposal qwen-companion-proposal-current))
    (when (or (null proposal) (qwen-companion-proposal-file-p proposal))
      (user-error "Not in a buffer with a plan or questions"))
    (unless (or (qwen-companion-proposal-chat proposal)
                (qwen-companion-proposal-released proposal))
      (qwen-companion-backend-call
       'release (list :id (qwen-companion-proposal-id proposal))))
    (when-let* ((terminal (car (qwen-companion-review-terminals proposal))))
      (pop-to-buffer terminal))))

(define-key qwen-companion-unified-mode-map (kbd "C-c C-t") #'qwen-companion-plan-in-terminal)

;;; The previous plan

(defvar qwen-companion-plan--refused nil
  "The last refused plan of each session: an alist (SESSION . PROPOSAL).")

(defun qwen-companion-plan--begun (proposal)
  "If PROPOSAL is a plan, record its text and the previous plan."
  (when (eq 'plan (qwen-companion-proposal-kind proposal))
    (setf (qwen-companion-proposal-earlier proposal)
          (alist-get (qwen-companion-proposal-session proposal)
                     qwen-companion-plan--refused nil nil #'equal)
          (qwen-companion-proposal-base proposal)
          (qwen-companion-proposal-buffer-text proposal))))

(defun qwen-companion-plan--ended (proposal &rest _)
  "If PROPOSAL is a refused plan, keep it to compare the next plan with it."
  (when (eq 'plan (qwen-companion-proposal-kind proposal))
    ;; Otherwise each would keep all earlier ones alive.
    (setf (qwen-companion-proposal-earlier proposal) nil
          (alist-get (qwen-companion-proposal-session proposal)
                     qwen-companion-plan--refused nil 'remove #'equal)
          (and (eq 'rejected (qwen-companion-proposal-state proposal)) proposal))))

(add-hook 'qwen-companion-proposal-begun-functions #'qwen-companion-plan--begun -50)
(add-hook 'qwen-companion-proposal-ended-functions #'qwen-companion-plan--ended)

;;; Questions

(defun qwen-companion-plan--draw-questions (proposal)
  "Insert the questions of PROPOSAL, if it has any, into its buffer."
  (when-let* ((questions (qwen-companion-proposal-questions proposal)))
    (dolist (question questions)
      (when-let* ((header (qwen-companion-asked-question-header question)))
        (insert "# " (qwen-companion-untrusted-line header) "\n\n"))
      (insert (qwen-companion-untrusted-text (qwen-companion-asked-question-text question) t)
              (if (qwen-companion-asked-question-multiple question) " (several)" "")
              "\n")
      (dolist (choice (qwen-companion-asked-question-choices question))
        (insert "- " (qwen-companion-untrusted-line (qwen-companion-question-choice-label choice))
                (if-let* ((description (qwen-companion-question-choice-description choice)))
                    (concat ": " (qwen-companion-untrusted-line description))
                  "")
                "\n"))
      (insert "\n"))
    (goto-char (point-min))
    (set-buffer-modified-p nil)
    (setq buffer-read-only t)))

(defun qwen-companion-plan--read (question)
  "Return the user's answer to QUESTION: a choice or free text."
  (let* ((choices (qwen-companion-completion-table
                   (mapcar (lambda (choice)
                             (cons (qwen-companion-untrusted-line
                                    (qwen-companion-question-choice-label choice))
                                   (qwen-companion-question-choice-description choice)))
                           (qwen-companion-asked-question-choices question))
                   nil (lambda (description)
                         (and description (qwen-companion-untrusted-line description)))))
         (prompt (format "%s " (qwen-companion-untrusted-line
                                (qwen-companion-untrusted-cut
                                 (qwen-companion-asked-question-text question)))))
         answer)
    (while (string-blank-p
            (setq answer
                  (if (qwen-companion-asked-question-multiple question)
                      (string-join (completing-read-multiple (concat prompt "(separate several by commas): ")
                                                             choices)
                                   ", ")
                    (completing-read prompt choices)))))
    answer))

(cl-defmethod qwen-companion-review-answer ((_kind (eql 'question)) proposal)
  "Ask the questions of PROPOSAL in the minibuffer; return the answers."
  (let ((said ""))
    (dolist (question (qwen-companion-proposal-questions proposal))
      (let ((before (concat said (and (not (string-empty-p said)) "\n\n")
                            (qwen-companion-asked-question-text question) "\n")))
        (setq said (qwen-companion-completion-read-words
                    (lambda () (concat before (qwen-companion-plan--read question)))
                    (lambda () (qwen-companion-proposal-open-p proposal))))))
    said))

(provide 'qwen-companion-plan)
;;; qwen-companion-plan.el ends here
