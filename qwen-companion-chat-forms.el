;;; qwen-companion-chat-forms.el --- The questions of a model in a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; A model may ask the user questions, with answers to choose from, of which
;; one or several can be chosen, or with an answer of the user's own.  Here
;; is how such a form looks and what becomes of it by a choice.  When it is
;; asked, and when its answers are sent, is as for permissions.
;;
;; QUESTIONS are property lists as they are told with `daemon-permission';
;; ANSWERS has for each of them the list of what was chosen.  Questions are
;; counted from 0.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-untrusted)

(defun qwen-companion-chat-forms--labels (question)
  "Return the answers to QUESTION that can be chosen."
  (mapcar (lambda (choice) (plist-get choice :label))
          (plist-get question :choices)))

(defun qwen-companion-chat-forms--own (question chosen)
  "Return those of CHOSEN that QUESTION does not offer: the user's own."
  (cl-set-difference chosen (qwen-companion-chat-forms--labels question)
                     :test #'equal))

;;; How it looks

(defun qwen-companion-chat-forms-text (questions answers active)
  "Return the text of QUESTIONS with their ANSWERS.
With ACTIVE non-nil, each answer has the property
`qwen-companion-chat-choice': the number of the question and what is
chosen by it, nil for an answer of the user's own."
  (let ((number -1))
    (mapconcat (lambda (question)
                 (cl-incf number)
                 (qwen-companion-chat-forms--question
                  number question (nth number answers) active))
               questions "")))

(defun qwen-companion-chat-forms--question (number question chosen active)
  "Return the text of QUESTION with NUMBER, of whose answers some are CHOSEN.
ACTIVE is as for `qwen-companion-chat-forms-text'."
  (let* ((multiple (plist-get question :multiple))
         (own (qwen-companion-chat-forms--own question chosen))
         (line (lambda (answer on text)
                 (let ((line (concat "    " (qwen-companion-chat-forms--mark multiple on)
                                     " " text "\n")))
                   (if active
                       (propertize line
                                   'qwen-companion-chat-choice (cons number answer)
                                   'mouse-face 'highlight)
                     line)))))
    (concat
     "  " (if-let* ((header (plist-get question :header)))
              (concat (propertize (qwen-companion-untrusted-text header t) 'face 'bold) ": ")
            "")
     (qwen-companion-untrusted-text (plist-get question :text) t)
     (propertize (if multiple "  (one or more)" "") 'face 'shadow)
     "\n"
     (mapconcat
      (lambda (choice)
        (let ((label (plist-get choice :label))
              (description (plist-get choice :description)))
          (funcall line label (member label chosen)
                   (concat (qwen-companion-untrusted-line label)
                           (if description
                               (propertize
                                (concat "  " (qwen-companion-untrusted-line description))
                                'face 'shadow)
                             "")))))
      (plist-get question :choices) "")
     (funcall line nil own
              (if own
                  (mapconcat #'qwen-companion-untrusted-line own ", ")
                "an answer of your own")))))

(defun qwen-companion-chat-forms--mark (multiple on)
  "Return the mark of an answer that is chosen if ON, of MULTIPLE or of one."
  (cond ((and multiple on) "[x]")
        (multiple "[ ]")
        (on "(x)")
        (t "( )")))

;;; What becomes of it

(defun qwen-companion-chat-forms-choose (question chosen answer)
  "Return what is chosen of QUESTION, after CHOSEN, when ANSWER is chosen too.
With ANSWER nil, the user is asked for one."
  (let* ((own (qwen-companion-chat-forms--own question chosen))
         (added (cond (answer (list answer))
                      ((let ((text (string-trim (read-string "Your answer: " (car own)))))
                         (and (not (string-empty-p text)) (list text)))))))
    (cond ((not (plist-get question :multiple)) added)
          ((not answer) (append (cl-set-difference chosen own :test #'equal) added))
          ((member answer chosen) (remove answer chosen))
          (t (append chosen added)))))

(defun qwen-companion-chat-forms-check (answers)
  "Refuse ANSWERS of which one is missing."
  (when-let* ((open (cl-position nil answers)))
    (user-error "Question %d has no answer yet; RET on a line chooses it" (1+ open))))

(provide 'qwen-companion-chat-forms)
;;; qwen-companion-chat-forms.el ends here
